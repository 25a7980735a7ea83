"""Course: tables of each lab's runs, the exercises and their judge, the map of labs, and the terms."""
