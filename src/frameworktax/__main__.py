from frameworktax.cli import main

main()
