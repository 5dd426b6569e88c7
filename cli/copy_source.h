// The images of a store, as whoever copies them elsewhere looks at them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/client.h"
#include "cli/copy_report.h"
#include "rekindle/v1/rekindle.pb.h"

namespace rekindle::cli {

// What names an image's content in every store that has it.
const std::string& OriginOf(const v1::Image& image);

// What tells its job from others: the mark of a supervised one stays the same in all its lives, else its
// process; empty: unknown.
std::string JobOf(const v1::Image& image);
// This image, under this name, of those that have its digest.
std::string RequestFor(const v1::Image& image);
// "train" of "train:7".
std::string NameOf(const std::string& reference);
// "7" of it; empty: it has none.
std::string TagOf(const std::string& reference);

// May another attempt get further?
bool IsWorthAnAttempt(const absl::Status& status);

// How much of an image a part of it brings on its way: REKINDLE_COPY_PART, in MiB; 0, also where that says
// nothing that can be understood: whoever sends it decides.
uint64_t CopyPartBytes();

// Client::SendImage. Of a daemon that knows of no parts the image comes in one stream.
absl::Status SendWithParts(Client& from, v1::SendImageRequest request,
                           const std::function<bool(const v1::SendImageEvent&)>& on_event);

// The images of a store that a copy may go to, of which the references contain that text. One that is not
// there yet has none: it is made by what comes.
absl::StatusOr<v1::ListImagesResponse> ImagesIn(Client& client, const std::string& name_contains = "");

// Not thread-safe.
class CopySource {
 public:
  explicit CopySource(Client& client) : client_(client) {}

  absl::StatusOr<v1::Image> Find(const std::string& image) const;
  // Newest first; of an older daemon more than were asked for. `newest` 0: all.
  absl::StatusOr<std::vector<v1::Image>> ImagesOf(const std::string& name, uint32_t newest = 0) const;
  // The last committed one of this name; no copy link (copy_link.h), here and below. NotFound: there is none.
  absl::StatusOr<v1::Image> Newest(const std::string& name) const;
  // The newest of its name that was taken after it of the same job, as labels say; nothing: there is none.
  absl::StatusOr<std::optional<v1::Image>> NewestAfter(const v1::Image& image) const;
  // The newest other image of this name and owner of which `has` says that the other place has it (by its
  // origin): names belong to nobody, and the copy is to depend on nobody else.
  absl::StatusOr<std::optional<v1::Image>> BaseOf(
      const v1::Image& image, absl::FunctionRef<bool(const std::string& origin)> has) const;
  // Which copies are of an older state than this image, and which of a newer one, as far as this store can
  // tell: images are committed in order, while clocks are set. By origin. Of one that came from elsewhere
  // it can't.
  struct Order {
    std::set<std::string> earlier, later;
  };
  absl::StatusOr<Order> OrderAround(const v1::Image& image);
  // The origins of what the store has under the name of this image, or had when it was asked before: other
  // stores copy to the same place. What came from one of those itself only if it is of the same job.
  absl::StatusOr<std::set<std::string>> Ours(const v1::Image& image);
  // Of what Ours has told: is a copy of this origin and tag one of ours, and not the name that somebody has
  // given it elsewhere? As far as the store had it when it was asked.
  bool IsOurName(const std::string& origin, const std::string& tag) const;
  // Of that: it was taken elsewhere, and has come here.
  bool CameHere(const std::string& origin) const { return came_here_.contains(origin); }
  // These are ours, too: the store had them before it was asked.
  void Remember(const std::vector<std::string>& origins) { ours_.insert(origins.begin(), origins.end()); }

 private:
  void NoteOurs(const std::vector<v1::Image>& images, const v1::Image& image);
  absl::StatusOr<std::optional<v1::Image>> NewestOf(const std::string& name,
                                                    absl::FunctionRef<bool(const v1::Image&)> eligible) const;

  Client& client_;
  mutable bool knows_names_ = true;  // the daemon: ListImagesRequest.name and what came with it
  std::set<std::string> ours_, came_here_;
  std::map<std::string, std::set<std::string>> tags_;  // by origin
};

struct CopyOptions {
  bool whole = false;  // also what the other place has of it
  bool quiet = false;  // says nothing of an image that is there already
  uint32_t keep = 0;   // 0: all
  CopyWords words;
};

// A place for copies.
class CopyTarget {
 public:
  virtual ~CopyTarget() = default;
  // Prints what was done.
  virtual absl::Status Copy(const v1::Image& image) = 0;
  // The last Copy has failed and left parts of the image there, from which the next one of it goes on.
  virtual bool LeftParts() const = 0;
  // Whoever copied there from this source before has copied these, by their origins: they are pruned too.
  virtual void Remember(const std::vector<std::string>& origins) = 0;
  // Of the copies of this name that came from the source those that are too many. `sent` stays, whatever the
  // clocks say. `there`: the origins of those that stay, where it was looked for what is too many.
  virtual absl::Status Prune(const std::string& name, const v1::Image& sent,
                             std::optional<std::vector<std::string>>* there) = 0;
  // Could copies of images of that name be written there? Leaves nothing there but an empty folder, or a
  // store where there was none.
  virtual absl::Status Check(const std::string& name) = 0;
  // That the job whose images are copied goes on elsewhere, too (other_starts.h), as the last Copy has seen;
  // empty: nothing shows it.
  virtual const std::string& OtherStart() const = 0;
  // Ends what is under way; from any thread.
  virtual void Cancel() = 0;
};

}  // namespace rekindle::cli
