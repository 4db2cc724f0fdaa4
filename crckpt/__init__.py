"""crckpt checkpoints running Linux process trees and brings them back."""

__version__ = "0.1.0"
