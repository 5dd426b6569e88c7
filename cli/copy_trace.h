// What `rekindle copy --follow` lets the store that it copies from know, so that `ps`, `top`, `doctor` and
// the metrics show it.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "cli/client.h"
#include "cli/output.h"
#include "rekindle/v1/rekindle.pb.h"

namespace rekindle::cli {

// A place as others may see it: of a remote that the command line makes (":s3,secret_access_key=…:bucket")
// only its kind, and what tells it from others.
std::string ShownPlace(const std::string& place);

// Not thread-safe. What can't be told is told once more by the next Tell; a daemon that knows no such thing
// is left alone.
class CopyTrace {
 public:
  // `source` and `output` outlive this.
  CopyTrace(Client& source, const std::string& name, const std::string& place, const Output& output);

  // Whether it is known what is there that others have copied, before this or beside it.
  bool knows_of_others() const { return knows_of_others_; }
  // Of that, by origins, what was learned since the last call.
  std::vector<std::string> TakeLearned() { return std::exchange(learned_, {}); }

  // An image is about to be copied, which is told at once: if this process is killed when all of it is there,
  // whoever copies next knows whose it is.
  void Begins(const v1::Image& image);
  // `there`: the origins of what is there now; nothing: that one too.
  void Copied(const v1::Image& image, const std::optional<std::vector<std::string>>& there);
  void Failed(const absl::Status& why);
  // What there is to tell; to be called now and then.
  void Tell();
  // Nothing more is copied.
  void End();

 private:
  void NoteThere(const std::string& origin);
  // Whether there was something new in it.
  bool Learn(const v1::NoteCopyResponse& before);

  Client& source_;
  const Output& output_;
  v1::NoteCopyRequest note_;  // the last state
  // Origins that this one has told or learned, and those of them that were there.
  std::set<std::string> known_, was_there_;
  std::vector<std::string> learned_;
  bool knows_of_others_ = false;
  bool told_ = false;
  bool unknown_ = false;  // of an older daemon
  std::string warned_of_;
};

}  // namespace rekindle::cli
