// What somebody may have meant who wrote a word that there is not: for hints in errors.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace rekindle {

// How many letters have to be put in, left out, changed, or swapped with the one beside, to make `b` of `a`;
// more than `most`: `most` + 1. In bytes. Takes time in proportion to the product of the lengths, or to
// `most` where these differ by more.
size_t WordDistance(absl::string_view a, absl::string_view b, size_t most);

struct KnownWord {
  std::string word;
  bool careful = false;  // does or removes something that can't be undone: meant only by who all but wrote it
};

// The one of `known` that `typed` is a slip of the fingers of, or the only one that it is the beginning of;
// empty: none, or several are as near. Two letters or less are taken for a slip only where they were swapped.
// A careful one is named only where one letter is wrong, none that is not careful is as near, and it has four
// or more.
std::string NearWord(absl::string_view typed, const std::vector<KnownWord>& known);

}  // namespace rekindle
