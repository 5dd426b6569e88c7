// Copies of images in another store, of a daemon or in a folder.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "cli/client.h"
#include "cli/copy_source.h"
#include "cli/output.h"
#include "rekindle/v1/rekindle.pb.h"

namespace rekindle::cli {

struct StoreCopyOptions {
  v1::ReceiveImageBegin begin;
  bool whole = false;           // also what the other store has of it
  bool quiet = false;           // says nothing of an image that is there already
  uint32_t keep = 0;            // 0: all
  std::string copied, already;  // what is told of an image: "copied to X", "is at X already"
};

// What is left out is what the newest image of the same name has that both stores have.
class StoreCopies : public CopyTarget {
 public:
  // All outlive this.
  StoreCopies(Client& from, Client& to, const Output& output, StoreCopyOptions options)
      : from_(from), to_(to), source_(from), output_(output), options_(std::move(options)) {}

  absl::Status Copy(const v1::Image& image) override;
  absl::Status Prune(const std::string& name, const v1::Image& sent) override;
  void Cancel() override { to_.Cancel(); }

 private:
  absl::Status Transfer(const v1::SendImageRequest& request);
  void Tell(const v1::Image& image, bool was_there, uint64_t bytes) const;

  Client& from_;
  Client& to_;
  CopySource source_;
  const Output& output_;
  const StoreCopyOptions options_;
};

// "train:7 copied to node2: 1.2 MiB for 100 MiB of memory\n"
std::string SentText(const v1::TransferResult& sent, absl::string_view where);

}  // namespace rekindle::cli
