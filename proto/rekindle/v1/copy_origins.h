// How much a store remembers of copies at another place (CopiesThere).
#pragma once

namespace rekindle::v1 {

// Of each name and place the last ones: whoever copies with --keep does not find older ones again once he has
// been started anew. All notes are read for each `ps`.
inline constexpr int kMostCopyOrigins = 400;

}  // namespace rekindle::v1
