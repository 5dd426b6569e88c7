// Decompresses the data of an image stream on several threads, while more of it is read.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/notification.h"
#include "absl/types/span.h"
#include "base/bounded_queue.h"

namespace rekindle::ckpt {

// Of one thread.
class StreamDecompressor {
 public:
  // The data of one record. Any thread may wait for it; its status is there when it is done.
  class Piece {
   public:
    Piece(std::string compressed, absl::Span<std::byte> out)
        : compressed_(std::move(compressed)), out_(out) {}
    bool done() const { return done_.HasBeenNotified(); }
    absl::Status Await() const;

   private:
    friend class StreamDecompressor;
    void Decompress();

    std::string compressed_;
    const absl::Span<std::byte> out_;
    absl::Status status_;
    absl::Notification done_;
  };

  StreamDecompressor();
  // What was begun is done before; it is written to until then.
  ~StreamDecompressor();

  // `out` is filled with what store::ImageStreamReader::ReadDataAsSent left. Waits while much is under way.
  std::shared_ptr<const Piece> Begin(std::string compressed, absl::Span<std::byte> out);

 private:
  void StartThreads();

  const size_t most_threads_;
  BoundedQueue<std::shared_ptr<Piece>> queue_;
  std::vector<std::thread> threads_;
  bool started_ = false;
};

}  // namespace rekindle::ckpt
