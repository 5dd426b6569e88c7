// The images that requests name, by those who may use them.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/call.h"
#include "daemon/node.h"
#include "dedup_store/store.h"

namespace rekindle::daemon {

// What a name without a tag means where no image is "NAME:latest". What goes for good is named in full.
enum class BareName { kNewest, kLatestAlone };

// The image, if the caller may `verb` it ("restore"). Thread-safe.
absl::StatusOr<store::ImageInfo> FindImageFor(const Node& node, const store::Store& store,
                                              const Caller& caller, absl::string_view image,
                                              absl::string_view verb, BareName bare = BareName::kNewest);

// What whoever has asked for `image`, a name without a tag, should know of `found`, its ":latest": that there
// are newer ones of the name which he may use. Empty: nothing. Thread-safe.
std::string WarningOfNewer(const Node& node, const store::Store& store, const Caller& caller,
                           absl::string_view image, const store::ImageInfo& found);

}  // namespace rekindle::daemon
