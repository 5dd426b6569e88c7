// What CRIU, docker, podman, cuda-checkpoint, the AWS CLI and plain habit call our commands and options, and
// what there is here instead. For hints in errors alone: none of these words does anything.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace rekindle::cli {

// A command that is none of ours.
struct ForeignCommand {
  absl::string_view above;  // the command below which it was written: "fn", "gpu"; empty: none
  absl::string_view word;
  absl::string_view ours;  // what follows "rekindle" in our words; empty: the note says it all
  absl::string_view note;  // more about it, as a part of a sentence; empty: nothing
};

// An option that is none of ours there.
struct ForeignOption {
  // The command, as "ckpt" or "fn deploy"; of several, with commas: "ckpt,restore"; empty: before any
  // command, and with each that has no line of its own.
  absl::string_view commands;
  absl::string_view option;
  absl::string_view note;  // what to do instead, or why nothing need be done
};

const std::vector<ForeignCommand>& ForeignCommands();
const std::vector<ForeignOption>& ForeignOptions();

// nullptr: not known.
const ForeignCommand* FindForeignCommand(absl::string_view above, absl::string_view word);
// Empty: not known.
std::string ForeignOptionNote(absl::string_view command, absl::string_view option);

}  // namespace rekindle::cli
