// What the labels of a job's images tell of their order. Pure.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "rekindle/v1/rekindle.pb.h"

namespace rekindle::cli {

// Was `a` taken after `b`? Nothing: each went its own way, or their labels don't tell. (What the numbers of
// images say of starts counts them, and not which of them goes on from which.)
std::optional<bool> IsLaterByLabels(const v1::Image& a, const v1::Image& b);

// Have both come from one start, each its own way? Neither shows the other's work then, whatever the clocks
// say.
bool WentDifferentWays(const v1::Image& a, const v1::Image& b);

// Has a supervisor taken `one`, for nobody but itself, of the job of `image` and before that, on whatever
// node: of the same start, or of one from which that has come?
bool IsInPastOf(const v1::Image& one, const v1::Image& image);

// Of the latter alone.
bool IsOfEarlierStart(const v1::Image& one, const v1::Image& image);

// Of copies at a place that are all of earlier starts than one image's: those that are too many, the oldest
// first, where `keep` stay, but no fewer than two. They count by themselves: who copies does not know whether
// images of the later start hold the beginning of a failure already, nor whether the last one before them
// does.
std::vector<v1::Image> BeyondKeptOfEarlier(std::vector<v1::Image> copies, size_t keep);

// The one of these that is to stay whatever `keep` says: the newest undamaged one that, as the image says
// which was copied last, holds no death that comes at once. Null: it says of none.
const v1::Image* SoundAmong(const std::vector<v1::Image>& copies, const v1::Image& image);

}  // namespace rekindle::cli
