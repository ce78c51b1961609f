"""Recipes: typed models (`models`), loading and checking (`load`), explaining (`explain`)."""
