"""The equations of motion in the forms of the books."""
