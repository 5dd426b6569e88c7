// The receiving side of `criu dump --stream`: Rekindle is itself the image streamer. See
// docs/criu-protocols.md.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace rekindle::criu {

// Takes one image file as it is dumped. `Drain` is called on a thread of its own, once per file, possibly
// many at a time; it reads `pipe` to end-of-file. Its status other than OK fails the dump (the pipe is
// closed, CRIU sees a broken pipe and lets the job go on).
class ImageFileConsumer {
 public:
  virtual ~ImageFileConsumer() = default;
  // CRIU asked for this file; its Drain follows. Called in the order of the requests, on the thread of Serve.
  virtual void Announced(const std::string& file_name) { static_cast<void>(file_name); }
  virtual absl::Status Drain(const std::string& file_name, UniqueFd pipe) = 0;
};

class CaptureServer {
 public:
  // Binds `images_directory`/streamer-capture.sock (the path must fit sun_path: keep the folder's name short)
  // and listens. Must exist before CRIU starts. The consumer must outlive the server.
  static absl::StatusOr<std::unique_ptr<CaptureServer>> Listen(const std::string& images_directory,
                                                               ImageFileConsumer* consumer);
  virtual ~CaptureServer() = default;  // stops and joins everything; removes the socket

  // Serves the one connection until CRIU closes it and every pipe is drained, then returns the names
  // received, in order. `criu_pidfd` ends the wait when CRIU dies before it connects. Says nothing about
  // success: CRIU's exit status does. Errors: the first of any consumer, a malformed request, or a connection
  // that broke.
  virtual absl::StatusOr<std::vector<std::string>> Serve(int criu_pidfd) = 0;

  // Makes Serve return Cancelled: closes the connection, so that CRIU gives up at its next image file, closes
  // its pipes and lets the job go on. A pipe belongs to the consumer that drains it: one with gigabytes to
  // come should look at a flag of its caller's and return early, which closes the pipe. Any thread.
  virtual void Cancel() = 0;
};

}  // namespace rekindle::criu
