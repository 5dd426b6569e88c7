// Why a job could not be brought back: is it the image, or something that may pass?
#pragma once

#include <string>

#include "absl/status/status.h"

namespace rekindle::daemon {

enum class Hindrance {
  kImage,  // another attempt would end in the same way
  // What it needs back, PIDs or file locks, is another's now, and an older image may do without; or it is not
  // clear whether it is the image. To be tried some times.
  kMoment,
  // Whichever image is taken: memory, processes, disk space, a file server, a folder, a stranger's link on
  // the way to a file, a package's library that is being replaced, a kill from outside, a network address
  // that is not there yet, a port or a terminal that another has.
  kMachine,
  kName,  // another job has its name
  // Whichever image is taken, and until somebody mends it: CRIU, a GPU or its driver is not there, or does
  // not work.
  kLacking,
  // The image is of a newer kernel or CRIU, or of another processor. An older image may do; else this lasts
  // until the machine is another one.
  kOtherMachine,
};

// Of an attempt that failed.
Hindrance HindranceOf(const absl::Status& status);

// May another image do where nobody wants to wait? As where it lies in the image, and where libraries that
// are being replaced are not what this one knows.
bool MayFitOtherImage(const absl::Status& status);

// What is told of it: without CRIU's own lines where ours say what it is.
std::string HindranceInWords(const absl::Status& status);

}  // namespace rekindle::daemon
