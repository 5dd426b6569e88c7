// What the keep-alive policy (keep_alive_policy.h) is told about functions and what it answers: plain values.
#pragma once

#include <cstdint>

namespace rekindle::functions {

using Micros = int64_t;  // microseconds of the caller's clock, which never goes back
using FunctionId = uint32_t;
using DependencyId = uint32_t;

// A dependency image: shared by all functions that name it, so each of its things counts once.
struct DependencyProfile {
  uint64_t template_bytes = 0;  // a live, parked copy
  uint64_t ram_bytes = 0;       // its hot pages, cached
  uint64_t disk_bytes = 0;      // its image in the store; 0: costs nothing, always there
  double read_ms = 0;           // added to a start for which its pages are not in RAM
  double make_template_ms = 0;  // work to make the template, which nobody waits for
};

// One function, on top of its dependency image. Bytes are what it needs beside the image that it shares.
struct FunctionProfile {
  DependencyId dependency = 0;
  uint64_t instance_bytes = 0;  // of one instance, busy or idle
  uint64_t template_bytes = 0;
  uint64_t ram_bytes = 0;    // own pages of its image, cached
  uint64_t disk_bytes = 0;   // own pages of its image, in the store
  uint32_t provisioned = 0;  // so many instances are always there

  // From an invocation's arrival to the handler's first instruction, as expected.
  double warm_ms = 0;                 // an idle instance
  double template_ms = 0;             // forked from its own template
  double image_ms = 0;                // from its image, all pages in RAM
  double image_read_ms = 0;           // added where its own pages are not in RAM
  double dependency_template_ms = 0;  // forked from the dependency image's template, code loaded
  double dependency_image_ms = 0;     // from the dependency image, pages in RAM, code loaded
  double cold_ms = 0;                 // from nothing
};

// Where a start comes from, the fastest first as a rule; which is the fastest for a function its profile
// says.
enum class StartLevel : uint8_t {
  kInstance,
  kTemplate,
  kDependencyTemplate,
  kImageRam,       // every page was in RAM
  kImageDisk,      // some page, own or the dependency image's, was not
  kDependencyRam,  // the dependency image, then code
  kDependencyDisk,
  kCold,
};
inline constexpr int kStartLevels = 8;

enum class ThingKind : uint8_t {
  kInstance,
  kTemplate,
  kRamImage,
  kDiskImage,
  kDependencyTemplate,
  kDependencyRam,
  kDependencyDisk,
};
inline constexpr int kThingKinds = 7;

// One thing that can be kept; `owner` is a FunctionId or a DependencyId, as the kind says.
struct Thing {
  ThingKind kind = ThingKind::kInstance;
  uint32_t owner = 0;
  friend bool operator==(const Thing&, const Thing&) = default;
};

// To do, in this order, after the start that was decided has what it needs. kMake: start an instance ahead of
// its invocation, make a template, read an image's pages and hold them, capture an image. kDrop: the
// opposite.
struct Action {
  enum class Verb : uint8_t { kMake, kDrop } verb = Verb::kMake;
  Thing thing;
  friend bool operator==(const Action&, const Action&) = default;
};

struct StartDecision {
  StartLevel level = StartLevel::kCold;
  double expected_ms = 0;
  bool over_budget = false;  // what is busy needs more memory than there is; nothing was left to drop
};

}  // namespace rekindle::functions
