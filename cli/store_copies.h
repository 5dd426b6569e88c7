// Copies of images in another store, of a daemon or in a folder.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "cli/client.h"
#include "cli/copy_source.h"
#include "cli/output.h"
#include "rekindle/v1/rekindle.pb.h"

namespace rekindle::cli {

// What is left out is what the newest image of the same name has that both stores have.
class StoreCopies : public CopyTarget {
 public:
  // All outlive this. `begin`: what is asked of the other store.
  StoreCopies(Client& from, Client& to, const Output& output, v1::ReceiveImageBegin begin,
              CopyOptions options)
      : from_(from),
        to_(to),
        source_(from),
        output_(output),
        begin_(std::move(begin)),
        options_(std::move(options)) {}

  absl::Status Copy(const v1::Image& image) override;
  void Remember(const std::vector<std::string>& origins) override { source_.Remember(origins); }
  absl::Status Prune(const std::string& name, const v1::Image& sent,
                     std::optional<std::vector<std::string>>* there) override;
  absl::Status Check(const std::string& name) override;
  void Cancel() override { to_.Cancel(); }

 private:
  absl::Status Transfer(const v1::SendImageRequest& request);

  Client& from_;
  Client& to_;
  CopySource source_;
  const Output& output_;
  const v1::ReceiveImageBegin begin_;
  const CopyOptions options_;
};

}  // namespace rekindle::cli
