#include "cli/copy_trace.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/stable_hash.h"
#include "cli/copy_source.h"
#include "rekindle/v1/copy_origins.h"

namespace rekindle::cli {

std::string ShownPlace(const std::string& place) {
  absl::string_view location = place;
  if (!absl::ConsumePrefix(&location, "rclone:")) return place;
  // "REMOTE:PATH", ":KIND:PATH", or with ",KEY=VALUE…" before the second colon; a value may have colons.
  const size_t colon = location.find(':', 1), comma = location.find(',');
  if (comma == absl::string_view::npos || comma > colon || absl::StartsWith(location, "/")) return place;
  return absl::StrFormat("rclone:%s,…(%08x)", location.substr(0, comma),
                         static_cast<uint32_t>(StableHash(location)));
}

CopyTrace::CopyTrace(Client& source, const std::string& name, const std::string& place, const Output& output)
    : source_(source), output_(output) {
  note_.set_name(name);
  note_.set_place(place);
}

void CopyTrace::Begins(const v1::Image& image) {
  // What is not told yet is told with it.
  if (told_) note_.clear_copied();
  note_.set_begins(OriginOf(image));
  known_.insert(OriginOf(image));
  told_ = false;
  Tell();
}

void CopyTrace::NoteThere(const std::string& origin) {
  known_.insert(origin);
  was_there_.insert(origin);
  auto* origins = note_.mutable_there()->mutable_origins();
  if (std::find(origins->begin(), origins->end(), origin) != origins->end()) return;
  *origins->Add() = origin;
  if (origins->size() > v1::kMostCopyOrigins)
    origins->DeleteSubrange(0, origins->size() - v1::kMostCopyOrigins);
}

// Who copies beside this one, as the command of a job that ends does beside the one that has followed it, has
// told what it knows since: what this one does not know of stays with what it tells.
bool CopyTrace::Learn(const v1::NoteCopyResponse& before) {
  knows_of_others_ = true;
  bool learned = false;
  const auto learn = [&](const std::string& origin) {
    if (known_.insert(origin).second) learned_.push_back(origin);
  };
  for (const std::string& origin : before.begun().origins()) learn(origin);
  for (const std::string& origin : before.there().origins()) {
    learn(origin);
    if (was_there_.contains(origin)) continue;
    NoteThere(origin);
    learned = true;
  }
  return learned;
}

void CopyTrace::Copied(const v1::Image& image, const std::optional<std::vector<std::string>>& there) {
  v1::Image* copied = note_.mutable_copied();
  copied->set_reference(image.reference());
  copied->set_digest(image.digest());
  copied->set_created_unix_ns(image.created_unix_ns());
  note_.clear_error();
  told_ = false;
  // Else what was there before would be forgotten.
  if (!knows_of_others_) return;
  if (there) {
    note_.mutable_there()->clear_origins();
    for (const std::string& origin : *there) NoteThere(origin);
  } else {
    NoteThere(OriginOf(image));
  }
}

void CopyTrace::Failed(const absl::Status& why) {
  const std::string error(why.message());
  if (told_ && note_.error() == error) return;
  // What is not told yet is told with it.
  if (told_) note_.clear_copied();
  note_.set_error(error);
  told_ = false;
}

void CopyTrace::Tell() {
  if (told_ || unknown_) return;
  const absl::StatusOr<v1::NoteCopyResponse> answer = source_.NoteCopy(note_);
  const absl::Status& told = answer.status();
  told_ = told.ok();
  if (told_) {
    note_.clear_begins();
    const bool first = !knows_of_others_;
    if (Learn(*answer) && !first) {
      told_ = false;
      return Tell();
    }
  }
  unknown_ = absl::IsUnimplemented(told);
  // A daemon that is away, or a store that is not there yet, is told of by whoever looks for images.
  if (told_ || unknown_ || absl::IsUnavailable(told) || absl::IsNotFound(told)) return;
  const std::string reason(told.message());
  if (std::exchange(warned_of_, reason) != reason)
    output_.Warning(absl::StrCat("'rekindle ps' does not show these copies: ", reason));
}

void CopyTrace::End() {
  note_.clear_copied();
  note_.clear_error();
  note_.set_ended(true);
  told_ = false;
  Tell();
}

}  // namespace rekindle::cli
