// From which starts of a job a later one descends: what images of it are labelled with. A start that goes on
// from an image of another one descends from that, and from whatever that descends from. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "absl/strings/string_view.h"

namespace rekindle {

// By start, the number of the last of its images that lies in the past: those after that went another way.
using StartsBefore = std::map<std::string, uint64_t, std::less<>>;

// "START:NUMBER,…", the nearest first, of a start that goes on from an image: of which start and number that
// is, and which it has itself. Only so many of the nearest, so that images do not get longer labels for ever.
// Empty: the image does not say it.
std::string AncestorsOfNext(absl::string_view start, uint64_t number, absl::string_view ancestors);

// What such a label says, as far as it can be understood: those of what came from elsewhere say what they
// like.
StartsBefore ParseAncestors(absl::string_view ancestors);

// Is the image of that start and number in the past of one with this label?
bool IsInPast(absl::string_view ancestors, absl::string_view start, uint64_t number);

}  // namespace rekindle
