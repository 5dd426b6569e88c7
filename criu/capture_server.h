// The receiving side of `criu dump --stream`: Rekindle is itself the image streamer. See docs/criu-protocols.md.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace rekindle::criu {

// Takes one image file as it is dumped. `Drain` is called on a thread of its own, once per file, possibly many at a
// time; it reads `pipe` to end-of-file. Its status other than OK fails the dump (the pipe is closed, CRIU sees a
// broken pipe and lets the job go on).
class ImageFileConsumer {
 public:
  virtual ~ImageFileConsumer() = default;
  virtual absl::Status Drain(const std::string& file_name, UniqueFd pipe) = 0;
};

class CaptureServer {
 public:
  // Binds `images_directory`/streamer-capture.sock (the path must fit sun_path: keep the folder's name short) and
  // listens. Must exist before CRIU starts. The consumer must outlive the server.
  static absl::StatusOr<std::unique_ptr<CaptureServer>> Listen(const std::string& images_directory,
                                                               ImageFileConsumer* consumer);
  virtual ~CaptureServer() = default;  // stops and joins everything; removes the socket

  // Serves the one connection until CRIU closes it and every pipe is drained, then returns the names received, in
  // order. `criu_pidfd` ends the wait when CRIU dies before it connects. Says nothing about success: CRIU's exit
  // status does. Errors: the first of any consumer, a malformed request, or a connection that broke.
  virtual absl::StatusOr<std::vector<std::string>> Serve(int criu_pidfd) = 0;

  // Makes Serve return Cancelled soon: closes the connection and all pipes. Any thread.
  virtual void Cancel() = 0;
};

}  // namespace rekindle::criu
