"""``python -m gradrerank``: the same as the command ``gradrerank``."""

from gradrerank.cli import main

if __name__ == "__main__":
    main()
