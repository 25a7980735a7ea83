"""The course: a table of runs for each lab, exercises and their judge, the glossary and the map of labs."""
