#include "ckpt/stream_decompressor.h"

#include <optional>
#include <system_error>
#include <utility>

#include "ckpt/staging_arena.h"
#include "dedup_store/image_stream.h"

namespace rekindle::ckpt {

absl::Status StreamDecompressor::Piece::Await() const {
  done_.WaitForNotification();
  return status_;
}

void StreamDecompressor::Piece::Decompress() {
  status_ = store::DecompressStreamData(compressed_, out_);
  std::string().swap(compressed_);
  done_.Notify();
}

StreamDecompressor::StreamDecompressor() : most_threads_(CopyThreads()), queue_(most_threads_) {}

StreamDecompressor::~StreamDecompressor() {
  queue_.Close();
  for (std::thread& thread : threads_) thread.join();
}

void StreamDecompressor::StartThreads() {
  threads_.reserve(most_threads_);
  try {
    while (threads_.size() < most_threads_) {
      threads_.emplace_back([this] {
        while (std::optional<std::shared_ptr<Piece>> piece = queue_.Pop()) (*piece)->Decompress();
      });
    }
  } catch (const std::system_error&) {
    // Fewer do it too, or none but the caller's.
  }
}

std::shared_ptr<const StreamDecompressor::Piece> StreamDecompressor::Begin(std::string compressed,
                                                                           absl::Span<std::byte> out) {
  if (!std::exchange(started_, true)) StartThreads();
  auto piece = std::make_shared<Piece>(std::move(compressed), out);
  if (threads_.empty()) {
    piece->Decompress();
  } else {
    queue_.Push(piece);
  }
  return piece;
}

}  // namespace rekindle::ckpt
