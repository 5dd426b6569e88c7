// From which starts of a job a later one descends: what images of it are labelled with. A start that goes on
// from an image of another one descends from that, and from whatever that descends from. And which of these
// images hold no death that comes at once. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

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

// In the same form, of a start with these ancestors: up to where others were known to whoever started it
// (`known`), and to those before (`inherited`, of the image gone on from), as far as that is no past of it.
// Only so many, those submitted last first.
std::string SeenOfNext(StartsBefore known, absl::string_view ancestors, absl::string_view inherited);
// Adds what one knows of to what all know of.
void AddStarts(const StartsBefore& more, StartsBefore* known);

struct NumberInStart {
  std::string start;
  uint64_t number = 0;
};

// Images of a start, by their numbers: the job has run on for a while after each, and has come from the first
// to the last.
struct SoundStretch {
  std::string start;
  uint64_t first = 0, last = 0;

  bool Has(const NumberInStart& image) const {
    return image.start == start && first <= image.number && image.number <= last;
  }
  bool operator==(const SoundStretch&) const = default;
};

// A label "START:FIRST-LAST,…" of those in an image's past, the newest first; as far as it can be understood.
std::vector<SoundStretch> ParseSound(absl::string_view sound);
// At most 16 of the newest.
std::string SoundText(const std::vector<SoundStretch>& stretches);
// Which of these images, by their place, is the newest one in the newest stretch that has any.
std::optional<size_t> NewestSound(const std::vector<SoundStretch>& stretches,
                                  const std::vector<NumberInStart>& images);
// Of a start that has gone back to that image of it, or to one before all of it: what came after it leads to
// a death.
void CutOffAfter(absl::string_view start, uint64_t number, std::vector<SoundStretch>* stretches);

}  // namespace rekindle
