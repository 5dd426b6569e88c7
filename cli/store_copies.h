// Copies of images in another store, of a daemon or in a folder.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "cli/client.h"
#include "cli/copy_source.h"
#include "cli/other_starts.h"
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
        options_(std::move(options)),
        part_tag_(PartTag(begin_.owner())) {}

  absl::Status Copy(const v1::Image& image) override;
  bool LeftParts() const override { return left_parts_; }
  void Remember(const std::vector<std::string>& origins) override { source_.Remember(origins); }
  absl::Status Prune(const std::string& name, const v1::Image& sent,
                     std::optional<std::vector<std::string>>* there) override;
  absl::Status Check(const std::string& name) override;
  const std::string& OtherStart() const override { return other_starts_.told(); }
  void Cancel() override { to_.Cancel(); }

 private:
  // A part of an image has this tag. Everybody has his own, and one for each owner that he copies for:
  // another's image is not to be built upon.
  static std::string PartTag(const std::string& owner);
  bool IsPart(const v1::Image& image) const;
  // What `image` may be sent since, of what is there.
  absl::StatusOr<std::optional<v1::Image>> BaseAmong(const v1::Image& image,
                                                     const v1::ListImagesResponse& there) const;
  absl::Status NoteOtherStarts(const v1::Image& image, const v1::ListImagesResponse& of_name);
  // Of these images there, as RequestFor names them, those that are gone: but for what somebody there needs.
  absl::StatusOr<std::set<std::string>> RemoveUnlessNeeded(const std::string& name,
                                                           const std::vector<v1::Image>& images);
  absl::Status Transfer(const v1::SendImageRequest& request);
  v1::ReceiveImageBegin BeginOf(const v1::SendImagePart& part) const;
  // Of this image those that are there, where it has some; those that `known` has.
  absl::Status RemoveParts(const v1::Image& image);
  absl::Status RemoveParts(const v1::Image& image, const v1::ListImagesResponse& known);

  Client& from_;
  Client& to_;
  CopySource source_;
  const Output& output_;
  const v1::ReceiveImageBegin begin_;
  const CopyOptions options_;
  const std::string part_tag_;
  bool has_part_ = false;  // of the image on its way, there
  bool left_parts_ = false;
  OtherStarts other_starts_;
};

}  // namespace rekindle::cli
