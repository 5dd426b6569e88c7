// What the labels of a job's images tell of their order. Pure.
#pragma once

#include <optional>

#include "rekindle/v1/rekindle.pb.h"

namespace rekindle::cli {

// Was `a` taken after `b`? Nothing: each went its own way, or their labels don't tell. (What the numbers of
// images say of starts counts them, and not which of them goes on from which.)
std::optional<bool> IsLaterByLabels(const v1::Image& a, const v1::Image& b);

// Has a supervisor taken `one`, for nobody but itself, of the job of `image` and before that, on whatever
// node: of the same start, or of one from which that has come?
bool IsInPastOf(const v1::Image& one, const v1::Image& image);

}  // namespace rekindle::cli
