// When a copy gets the memory that it does not touch.
#pragma once

#include <optional>

#include "absl/strings/string_view.h"

namespace rekindle::restore {

enum class Fill {
  kNever,  // only what it touches comes
  kIdle,   // in the background, at the lowest priority
  kEager,  // before it runs
};

// What the pager's protocol calls it.
constexpr absl::string_view NameOf(Fill fill) {
  switch (fill) {
    case Fill::kNever:
      return "never";
    case Fill::kIdle:
      break;
    case Fill::kEager:
      return "eager";
  }
  return "idle";
}

// Nothing: none has this name.
constexpr std::optional<Fill> FillNamed(absl::string_view name) {
  for (Fill fill : {Fill::kNever, Fill::kIdle, Fill::kEager}) {
    if (NameOf(fill) == name) return fill;
  }
  return std::nullopt;
}

}  // namespace rekindle::restore
