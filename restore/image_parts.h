// How an image is cut into parts, for who takes it in to keep what has arrived when the rest does not.
//
// A part of an image ends at one of its pages: it has all pages before as the image has them, and of those
// behind what is there as in the base that it was sent since. So whatever it has is as in the image, and the
// next part, or the image, can be sent as what has changed since. Its origin tells of what image it is a
// part, since which base, and how far it goes. All functions are thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace rekindle::restore {

// The part that goes as far as the first `pages` pages of the image, in the order in which they are sent.
// `image` and `base` are origins; `base` may be empty. Of the form of any other origin.
std::string OriginOfPart(absl::string_view image, absl::string_view base, uint64_t pages);

// How many pages the largest of these parts has that are of that image since that base, and fewer than
// `all_pages`; 0: none is. `origins`: whole, or the first 32 of their digits.
uint64_t PagesOfLargestPart(const std::vector<std::string>& origins, absl::string_view image,
                            absl::string_view base, uint64_t all_pages);

}  // namespace rekindle::restore
