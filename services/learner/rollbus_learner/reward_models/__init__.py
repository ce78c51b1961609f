"""Models that say how good an observation is, one file each, found by name.

A reward model has ``Config`` (a `_base.RewardModelConfig`), ``FORM`` (how its figure becomes a reward, see
`rollbus_learner.reward_model`), ``train(config, episodes, spec) -> (module, figures)`` and
``build(config, spec) -> module``, the module without its weights; ``module(obs)`` gives [B] in [0, 1].
Config imports without torch.
"""
