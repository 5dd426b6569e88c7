// The runtime hook's control channel (docs/hook.md): the descriptors at which a process that is held by the
// hook has its two ends, and the longest message, as in hook/rekindle_hook.h.
#pragma once

namespace rekindle::v1 {

inline constexpr int kControlDescriptor = 1000;
inline constexpr int kControlPeer = 1001;
inline constexpr int kControlMessageLimit = 65536;  // bytes

}  // namespace rekindle::v1
