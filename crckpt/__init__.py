"""crckpt checkpoints running Linux process trees and brings them back.

Comments that name a line of CRIU's sources (criu/files.c:498) mean CRIU 4.2.
"""

__version__ = "0.4.0"
