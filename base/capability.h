// What this process may do beyond its user's rights: capabilities(7).
#pragma once

namespace rekindle {

// Has this thread that one in its effective set? By its number in linux/capability.h. Where that can't be
// read: no.
bool HasCapability(int capability);

}  // namespace rekindle
