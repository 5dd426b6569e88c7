// Takes in an image that another store sent: dedup_store/image_stream.h.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "ckpt/capture.h"
#include "dedup_store/image_stream.h"
#include "dedup_store/store.h"

namespace rekindle::ckpt {

struct ReceiveOptions {
  std::string reference;  // empty: the one that it had
  bool replace = false;   // take over the name from another image
  uid_t owner = 0;
  uint64_t staging_budget_bytes = 0;  // RAM for what comes; 0: half of what is available
  std::string spill_directory;        // for what does not fit in there
  // RAM for what is no memory of the job, all of which is kept until the image is complete; 0: a quarter of
  // what is available, and 256 MiB in any case.
  uint64_t rest_budget_bytes = 0;
  CaptureObserver* observer = nullptr;
  const std::atomic<bool>* cancel = nullptr;
};

struct ReceivedImage {
  store::ImageInfo image;
  bool was_there = false;  // under this name already: the stream was not read on
};

// What comes is kept in RAM, or in a file without a name, until all of it is there: an image that is not
// complete leaves no trace. A job can be made of it as of any image, so whoever sends one can run what he
// likes here: for administrators. FailedPrecondition: the base that it builds upon is not here (of this
// owner: another's could hold anything); the message names it. ResourceExhausted: it takes more memory or
// disk than there may be for it. AlreadyExists: the name is another image's.
absl::StatusOr<ReceivedImage> ReceiveImage(store::Store& store, const ReceiveOptions& options,
                                           store::ImageStreamReader::Source source);

}  // namespace rekindle::ckpt
