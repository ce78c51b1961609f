"""Who labels the decisions of a data set, one file each, found by name.

A labeller has ``Config`` (a `_base.LabellerConfig`), ``train(config, episodes, spec) -> module`` and
``score(config, module, episodes, spec) -> [scores]``; Config imports without torch.
"""
