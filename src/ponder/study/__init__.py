"""Study file to cells: what is asked, how it is named, and what is refused beforehand."""
