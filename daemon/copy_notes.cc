#include "daemon/copy_notes.h"

#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/human_units.h"
#include "base/image_reference.h"
#include "base/message_text.h"
#include "base/record_file.h"
#include "base/stable_hash.h"
#include "base/status.h"
#include "daemon/job_registry.h"
#include "daemon/node.h"
#include "daemon/rpcs.h"
#include "daemon/supervisor.h"
#include "rekindle/v1/copy_link.h"
#include "rekindle/v1/copy_origins.h"
#include "rekindle/v1/copy_trouble.h"
#include "rekindle/v1/image_layout.h"

namespace rekindle::daemon {
namespace {

constexpr absl::string_view kNoteSuffix = ".json";
constexpr size_t kMostNotesOfOne = 100, kMostNotes = 2000;
constexpr size_t kLongestPlace = 4096, kLongestError = 2000;
constexpr absl::Duration kForgetEndedAfter = absl::Hours(24);
// A large image takes its time on a slow line, and may take longer than it is until the next one.
constexpr absl::Duration kLagsAfter = absl::Minutes(10);
constexpr int kLagsPeriods = 2;
constexpr size_t kLongestOrigin = 80;  // it is a digest

std::string Ago(int64_t unix_ns, int64_t now_unix_ns) {
  return FormatSeconds(static_cast<double>(std::max<int64_t>(1, (now_unix_ns - unix_ns) / 1'000'000'000)));
}

bool IsForgotten(const v1::CopyState& note, int64_t now_unix_ns) {
  return note.ended() && now_unix_ns - note.told_unix_ns() > absl::ToInt64Nanoseconds(kForgetEndedAfter);
}

absl::Status CheckNote(const v1::NoteCopyRequest& what) {
  if (!store::NormalizeReference(absl::StrCat(what.name(), ":x")).ok())
    return absl::InvalidArgumentError(absl::StrCat("'", what.name(), "' is no name of images"));
  if (what.place().empty() || what.place().size() > kLongestPlace)
    return absl::InvalidArgumentError("a copy goes to a place whose name has 1 to 4096 bytes");
  // All of it is kept, and read by whoever lists jobs.
  if (!what.has_copied()) return absl::OkStatus();
  RK_RETURN_IF_ERROR(store::NormalizeReference(what.copied().reference()).status());
  if (what.copied().digest().size() > kLongestOrigin) {
    return absl::InvalidArgumentError(
        absl::StrCat("the digest of a copied image has at most ", kLongestOrigin, " bytes"));
  }
  return absl::OkStatus();
}

void AddBegun(const std::string& origin, v1::CopyState* note) {
  auto* begun = note->mutable_begun();
  begun->erase(std::remove(begun->begin(), begun->end(), origin), begun->end());
  *begun->Add() = origin;
  if (begun->size() > v1::kMostBegunCopies) begun->DeleteSubrange(0, begun->size() - v1::kMostBegunCopies);
}

}  // namespace

CopyNotes::CopyNotes(absl::string_view store) : directory_(absl::StrCat(store, "/copies")) {}

std::string CopyNotes::PathOf(uid_t owner, absl::string_view name, absl::string_view place) const {
  return absl::StrFormat("%s/%d-%016x%s", directory_, owner, StableHash(absl::StrCat(name, "\n", place)),
                         kNoteSuffix);
}

std::vector<std::string> CopyNotes::Files() const {
  std::vector<std::string> files = ListDirectory(directory_).value_or(std::vector<std::string>());
  std::erase_if(files, [](const std::string& file) { return !absl::EndsWith(file, kNoteSuffix); });
  return files;
}

// No user's many keep those of others from being listed.
std::vector<std::string> CopyNotes::FilesToList() const {
  std::vector<std::string> files = Files();
  if (files.size() <= kMostNotes) return files;
  std::map<std::string, std::vector<std::string>> by_owner;
  for (std::string& file : files) by_owner[file.substr(0, file.find('-'))].push_back(std::move(file));
  files.clear();
  for (size_t i = 0; files.size() < kMostNotes; ++i) {
    for (const auto& [owner, of_owner] : by_owner) {
      if (i < of_owner.size() && files.size() < kMostNotes) files.push_back(of_owner[i]);
    }
  }
  return files;
}

absl::Status CopyNotes::MakeRoom(uid_t owner, int64_t now_unix_ns) const {
  size_t left = 0;
  std::vector<std::pair<int64_t, std::string>> ended;
  for (const std::string& file : Files()) {
    if (!absl::StartsWith(file, absl::StrCat(owner, "-"))) continue;
    const std::string path = absl::StrCat(directory_, "/", file);
    const absl::StatusOr<v1::CopyState> note = ReadRecordFile<v1::CopyState>(path);
    if ((note.ok() && IsForgotten(*note, now_unix_ns)) || absl::IsDataLoss(note.status())) {
      RK_RETURN_IF_ERROR(RemoveTree(path));
    } else {
      ++left;
      if (note.ok() && note->ended()) ended.emplace_back(note->told_unix_ns(), path);
    }
  }
  // Those that ended first: what is copied now is of more use.
  std::sort(ended.begin(), ended.end());
  for (size_t i = 0; i < ended.size() && left >= kMostNotesOfOne; ++i, --left)
    RK_RETURN_IF_ERROR(RemoveTree(ended[i].second));
  if (left < kMostNotesOfOne) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("uid ", owner, " copies images of ", left,
                   " names and places already: end one of these ('rekindle copy --follow')"));
}

absl::Status CopyNotes::Note(uid_t owner, const v1::NoteCopyRequest& what, int64_t now_unix_ns,
                             v1::NoteCopyResponse* before) const {
  RK_RETURN_IF_ERROR(CheckNote(what));
  if (::mkdir(directory_.c_str(), 0700) != 0 && errno != EEXIST)
    return ErrnoStatus(errno, absl::StrCat("making folder ", directory_));
  RK_ASSIGN_OR_RETURN(const UniqueFd turn, LockFile(absl::StrCat(directory_, "/.lock"), LOCK_EX));
  const std::string path = PathOf(owner, what.name(), what.place());
  absl::StatusOr<v1::CopyState> read = ReadRecordFile<v1::CopyState>(path);
  if (absl::IsNotFound(read.status())) {
    // One that was never begun has nothing to end.
    if (what.ended()) return absl::OkStatus();
    RK_RETURN_IF_ERROR(MakeRoom(owner, now_unix_ns));
  }
  if (absl::IsNotFound(read.status()) || absl::IsDataLoss(read.status())) read = v1::CopyState();
  RK_RETURN_IF_ERROR(read.status());
  v1::CopyState& note = *read;
  if (before != nullptr) {
    *before->mutable_there()->mutable_origins() = note.there();
    *before->mutable_begun()->mutable_origins() = note.begun();
  }
  if (what.has_there()) {
    note.clear_there();
    const auto& origins = what.there().origins();
    for (int i = std::max(0, origins.size() - v1::kMostCopyOrigins); i < origins.size(); ++i)
      note.add_there(origins[i].substr(0, kLongestOrigin));
  }
  if (!what.begins().empty()) AddBegun(what.begins().substr(0, kLongestOrigin), &note);
  note.set_name(what.name());
  note.set_place(what.place());
  note.set_owner_uid(owner);
  if (what.has_copied()) {
    note.set_image(what.copied().reference());
    note.set_digest(what.copied().digest());
    note.set_taken_unix_ns(what.copied().created_unix_ns());
    note.set_copied_unix_ns(now_unix_ns);
  }
  // Whoever only asks what is there, or begins, has not tried yet.
  const bool asks = !what.has_there() && !what.has_copied() && what.error().empty();
  if (!what.ended() && !asks) {
    note.set_last_error(what.error().substr(0, kLongestError));
    if (what.error().empty()) {
      note.set_failing_since_unix_ns(0);
    } else if (note.failing_since_unix_ns() == 0) {
      note.set_failing_since_unix_ns(now_unix_ns);
    }
  }
  note.set_told_unix_ns(now_unix_ns);
  note.set_ended(what.ended());
  MakeText(&note);  // what was cut may end within a character, of which protobuf would write to the log
  return Annotate(WriteRecordFile(path, note), absl::StrCat("noting a copy of ", what.name()));
}

std::vector<v1::CopyState> CopyNotes::List(int64_t now_unix_ns) const {
  RemoveAbandonedRecords(directory_);
  std::vector<v1::CopyState> notes = All();
  std::erase_if(notes, [&](const v1::CopyState& note) { return IsForgotten(note, now_unix_ns); });
  return notes;
}

std::vector<v1::CopyState> CopyNotes::All() const {
  std::vector<v1::CopyState> notes;
  for (const std::string& file : FilesToList()) {
    absl::StatusOr<v1::CopyState> note = ReadRecordFile<v1::CopyState>(absl::StrCat(directory_, "/", file));
    if (note.ok()) notes.push_back(*std::move(note));
  }
  std::sort(notes.begin(), notes.end(), [](const v1::CopyState& a, const v1::CopyState& b) {
    return a.name() != b.name() ? a.name() < b.name() : a.place() < b.place();
  });
  return notes;
}

void JudgeCopy(absl::Span<const store::ImageInfo> images, bool of_all, absl::Duration period,
               int64_t now_unix_ns, v1::CopyState* state) {
  // Those that were committed after the one that is there, up to which all are newer.
  int64_t since = 0, later_by_clock = 0;
  bool found = false;
  for (const store::ImageInfo& image : images) {
    if (NameOfReference(image.reference) != state->name() || (!of_all && image.owner != state->owner_uid()) ||
        v1::IsCopyLink(image.reference, image.labels))
      continue;
    found = image.digest == state->digest();
    if (found) break;
    since = image.created_unix_ns;
    if (image.created_unix_ns > state->taken_unix_ns()) later_by_clock = image.created_unix_ns;
  }
  // Of those there are only the ones that are newer than one that is gone here.
  state->set_behind_since_unix_ns(found || state->digest().empty() ? since : later_by_clock);
  if (state->ended()) return;
  const std::string what = absl::StrCat("images of ", state->name(), " are not copied to ", state->place());
  if (absl::StartsWith(state->last_error(), v1::kGoesOnElsewhere)) {
    state->set_trouble(absl::StrCat("copies of images of ", state->name(), " in ", state->place(), ": ",
                                    state->last_error()));
  } else if (!state->last_error().empty()) {
    state->set_trouble(absl::StrCat(what, " since ", Ago(state->failing_since_unix_ns(), now_unix_ns), ": ",
                                    state->last_error()));
  } else if (state->behind_since_unix_ns() != 0 &&
             now_unix_ns - state->behind_since_unix_ns() >
                 absl::ToInt64Nanoseconds(std::max(kLagsAfter, kLagsPeriods * period))) {
    state->set_trouble(absl::StrCat(what, ": one has waited for ",
                                    Ago(state->behind_since_unix_ns(), now_unix_ns),
                                    "; 'rekindle copy --follow' has ended, or the way there is too slow"));
  }
}

std::vector<v1::CopyState> CopyStatesFor(Node& node, const Call& call) {
  const int64_t now = UnixNanos();
  std::vector<v1::CopyState> copies = CopyNotes(node.options().store).List(now);
  std::erase_if(copies, [&](const v1::CopyState& copy) {
    return !node.policy().MayUse(call.caller, copy.owner_uid());
  });
  if (copies.empty()) return copies;
  // A name may be copied to several places, and a store has many images: each copy meets those of its name
  // alone.
  std::map<std::string, std::vector<store::ImageInfo>, std::less<>> images;
  for (const v1::CopyState& copy : copies) images[copy.name()];
  // What can't be known now is not told.
  if (auto store = node.OpenStore(Node::Access::kRead); store.ok()) {
    absl::StatusOr<std::vector<store::ImageInfo>> all = (*store)->List(
        [&](const store::ImageInfo& image) { return images.contains(NameOfReference(image.reference)); });
    for (store::ImageInfo& image : all.value_or(std::vector<store::ImageInfo>())) {
      auto of_name = images.find(NameOfReference(image.reference));
      of_name->second.push_back(std::move(image));
    }
  }
  const std::map<std::string, double> periods = node.supervisor().PeriodsOfImages();
  for (v1::CopyState& copy : copies) {
    Caller owner;
    owner.kind = Caller::Kind::kLocal;
    owner.uid = copy.owner_uid();
    const auto period = periods.find(copy.name());
    JudgeCopy(images[copy.name()], node.policy().IsAdmin(owner),
              absl::Seconds(period == periods.end() ? 0 : period->second), now, &copy);
  }
  return copies;
}

std::vector<std::string> PlacesOfCopies(Node& node, const Call& call, const store::ImageInfo& image) {
  const auto label = image.labels.find(v1::kOriginLabel);
  const std::string& origin = label == image.labels.end() ? image.digest : label->second;
  std::set<std::string> places;
  for (const v1::CopyState& note : CopyNotes(node.options().store).All()) {
    const bool has_it = std::find(note.there().begin(), note.there().end(), origin) != note.there().end();
    if (has_it && note.name() == NameOfReference(image.reference) &&
        node.policy().MayUse(call.caller, note.owner_uid()))
      places.insert(note.place());
  }
  return {places.begin(), places.end()};
}

void AddCopies(const Node& node, const std::vector<v1::CopyState>& copies, v1::Job* job) {
  const std::string& given = job->supervised().policy().image_name();
  const std::string name = given.empty() ? ImageNameOf(job->name()) : given;
  for (const v1::CopyState& copy : copies) {
    Caller owner;
    owner.kind = Caller::Kind::kLocal;
    owner.uid = copy.owner_uid();
    if (copy.name() == name && node.policy().MayUse(owner, job->owner_uid())) *job->add_copies() = copy;
  }
}

absl::Status NoteCopy(Node& node, const Call& call, const v1::NoteCopyRequest& request,
                      v1::NoteCopyResponse* response) {
  RK_RETURN_IF_ERROR(node.CheckStoreIsThere());
  return CopyNotes(node.options().store).Note(call.caller.uid, request, UnixNanos(), response);
}

}  // namespace rekindle::daemon
