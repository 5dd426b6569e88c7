// What a user names as a layer: a folder with what a layer has in /opt, or a virtual environment of Python.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "functions/function_spec.h"

namespace rekindle::functions {

struct LayerFolder {
  std::string source;  // what is copied
  std::string place;   // relative to the layer; empty: it is the layer
  // The contents of the layer's file kEnvironmentFile; empty: it has none of ours.
  std::string environment;
};

// In the root of a layer that was made of a virtual environment. The runtime for Python looks for it, and
// does with such a layer's folder what Python does with one of packages.
inline constexpr absl::string_view kEnvironmentFile = "pyvenv.cfg";

// `python`: the version that the runtime has ("3.11"); empty: it is not Python. InvalidArgument: it is
// neither, or a virtual environment of another version, or none where it must be one; says what to do.
// With the calling thread's rights.
absl::StatusOr<LayerFolder> FindLayerFolder(const std::string& folder, const Runtime& runtime,
                                            const std::string& python, bool must_be_environment);

}  // namespace rekindle::functions
