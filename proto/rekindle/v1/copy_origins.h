// How much a store remembers of copies at another place (CopiesThere).
#pragma once

namespace rekindle::v1 {

// Of each name and place the last ones: whoever copies with --keep does not find older ones again once he has
// been started anew. All notes are read for each `ps`.
inline constexpr int kMostCopyOrigins = 400;

// More than there can be at once: each process copies one at a time.
inline constexpr int kMostBegunCopies = 20;

}  // namespace rekindle::v1
