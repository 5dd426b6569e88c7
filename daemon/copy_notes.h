// What becomes of the images that users copy elsewhere as they come, as those who copy them tell it: a JSON
// file for each name and place of a user, in STORE/copies.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "daemon/call.h"
#include "dedup_store/store.h"
#include "rekindle/v1/rekindle.pb.h"

namespace rekindle::daemon {

class Node;

// Thread-safe. Several processes may have a store's notes open: they take turns at changing them.
class CopyNotes {
 public:
  explicit CopyNotes(absl::string_view store);

  // Durable when it returns OK. `before`: what was told of copies before; may be null.
  // InvalidArgument: there is no such name, or no place; ResourceExhausted: the user has too many of them, or
  // the disk is full; FailedPrecondition: a newer version has written it.
  absl::Status Note(uid_t owner, const v1::NoteCopyRequest& what, int64_t now_unix_ns,
                    v1::NoteCopyResponse* before = nullptr) const;
  // Those that can be read now; not those that ended more than a day ago.
  std::vector<v1::CopyState> List(int64_t now_unix_ns) const;
  // The same with those: what was copied then is there.
  std::vector<v1::CopyState> All() const;

 private:
  std::vector<std::string> Files() const;
  // Of each user some, where there are too many.
  std::vector<std::string> FilesToList() const;
  std::string PathOf(uid_t owner, absl::string_view name, absl::string_view place) const;
  // Makes room for one more of the owner's.
  absl::Status MakeRoom(uid_t owner, int64_t now_unix_ns) const;

  const std::string directory_;
};

// Fills in what answers alone have, by the images of the store, the last committed one first. `of_all`: the
// copying user sees everybody's images. `period`: of images of that name; zero: it is not known.
void JudgeCopy(absl::Span<const store::ImageInfo> images, bool of_all, absl::Duration period,
               int64_t now_unix_ns, v1::CopyState* state);

// Those that the caller may see, judged.
std::vector<v1::CopyState> CopyStatesFor(Node& node, const Call& call);
// Where this image was copied to, as far as the caller may see that, each place once.
std::vector<std::string> PlacesOfCopies(Node& node, const Call& call, const store::ImageInfo& image);
// Those of its images.
void AddCopies(const Node& node, const std::vector<v1::CopyState>& copies, v1::Job* job);

}  // namespace rekindle::daemon
