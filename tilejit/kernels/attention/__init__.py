from tilejit.kernels.attention.blocks import attention_blocks
from tilejit.kernels.attention.function import attention
from tilejit.kernels.attention.latent import latent_attention

__all__ = ["attention", "attention_blocks", "latent_attention"]
