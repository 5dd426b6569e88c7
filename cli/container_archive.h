// Archives of containers' checkpoints, as podman and the kubelet write them, which are no images of
// Rekindle's.
#pragma once

#include <string>

namespace rekindle::cli {

// `file`, which `fd` has open, was refused as an image: what it is, if it is such an archive or may be one,
// and how what is in it can be taken in; empty: it is none. Reads the beginnings of its members, a few
// thousand at most.
std::string ContainerArchiveHint(int fd, const std::string& file);

}  // namespace rekindle::cli
