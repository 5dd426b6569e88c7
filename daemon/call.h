// What the implementation of a remote procedure knows of its call: gRPC stays outside.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "daemon/caller.h"

namespace rekindle::ckpt {
class CaptureGate;
class KeptStaging;
class StandingJob;
}  // namespace rekindle::ckpt

namespace rekindle::store {
struct ImageInMemory;
}

namespace rekindle::daemon {

// What a group adds to the checkpoint or restore of one of its members. Outlives the call.
struct PartOfGroup {
  ckpt::CaptureGate* gate = nullptr;             // see ckpt::CaptureOptions
  std::string prepared_id;                       // its image is stored, and not there until this is published
  std::function<absl::Status()> before_running;  // as restore::RestoreOptions has it
  // Where the job goes that is to end (CheckpointRequest::stop): whether it may is known later.
  std::unique_ptr<ckpt::StandingJob>* standing = nullptr;
  // What is to be done once its image is there, if that is soon.
  std::function<void()>* when_published = nullptr;
};

struct Call {
  Caller caller;
  // Has the client gone or cancelled? To be asked by one thread at a time.
  std::function<bool()> cancelled;
  // Makes what is being sent to the client fail at once, and all that follows. Any thread; may be null.
  std::function<void()> abandon;
  std::shared_ptr<void> counted;      // among those in work (calls_of_users.h)
  const PartOfGroup* part = nullptr;  // of a group's checkpoint or restore; null: of none
  // Of an image that is of no group; null: nobody waits there.
  ckpt::CaptureGate* gate = nullptr;
  // Of a job of which one image after the other is taken, which it should notice as little as can be; null:
  // an image that somebody asked for.
  ckpt::KeptStaging* kept_staging = nullptr;
  const store::ImageInMemory* in_memory = nullptr;  // see restore::RestoreOptions
  // A restore is to go on with files that the job has mapped and somebody has edited: nobody is there who
  // could put them back.
  bool takes_edited_files = false;

  // As `cancelled`, where there is a client.
  bool IsCancelled() const { return cancelled && cancelled(); }
};

// Sends one message of a stream; false when nobody listens any more. May block while the client is slow:
// never call it where a job stands still.
template <typename Event>
using EventSink = std::function<bool(const Event&)>;

}  // namespace rekindle::daemon
