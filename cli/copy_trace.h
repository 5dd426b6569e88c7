// What `rekindle copy --follow` lets the store that it copies from know, so that `ps`, `top`, `doctor` and
// the metrics show it.
#pragma once

#include <optional>
#include <string>
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

  // What was there of it when somebody copied the same before, by origins; nothing: that is not known yet.
  const std::optional<std::vector<std::string>>& before() const { return before_; }

  // `there`: the origins of what is there now; nothing: that one too.
  void Copied(const v1::Image& image, const std::optional<std::vector<std::string>>& there);
  void Failed(const absl::Status& why);
  // What there is to tell; to be called now and then.
  void Tell();
  // Nothing more is copied.
  void End();

 private:
  Client& source_;
  const Output& output_;
  v1::NoteCopyRequest note_;  // the last state
  std::optional<std::vector<std::string>> before_;
  bool told_ = false;
  bool unknown_ = false;  // of an older daemon
  std::string warned_of_;
};

}  // namespace rekindle::cli
