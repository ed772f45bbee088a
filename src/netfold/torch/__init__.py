"""The torch.distributed backend. Importing it registers "netfold", if torch has not done so."""

from netfold.autoload import register

register()
