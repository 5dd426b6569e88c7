#include "cli/run_options.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/error_cause.h"
#include "base/status.h"
#include "cli/arguments.h"
#include "cli/bucket_images.h"
#include "cli/copy_source.h"
#include "cli/exit_code.h"
#include "cli/image_listing.h"
#include "cli/other_starts.h"
#include "cli/resume_points.h"
#include "cli/table.h"
#include "cli/transfer_arguments.h"
#include "rekindle/v1/image_layout.h"

namespace rekindle::cli {
namespace {

// What schedulers send before they end something.
constexpr int kStopSignals[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGXCPU};

// An administrator is shown those of others, too. Over TCP it is the daemon's business whose a caller's are.
bool IsOwn(absl::string_view host, uint32_t owner) {
  const bool on_this_machine = host.empty() || absl::StartsWith(host, "unix:");
  return !on_this_machine || owner == ::geteuid();
}

constexpr int kMostOlder = 10;
constexpr absl::string_view kNotKnown =
    "it is not known whether there is an image to go on from, so nothing was started";
constexpr absl::string_view kBeginAnew =
    ": the job is not begun anew over what it has written. Leave --resume out if that is what you want";

std::vector<v1::Image> ImagesCalled(const std::string& name, v1::ListImagesResponse all) {
  std::vector<v1::Image> called;
  for (v1::Image& image : *all.mutable_images()) {
    if (absl::StartsWith(image.reference(), absl::StrCat(name, ":"))) called.push_back(std::move(image));
  }
  return called;
}

// The name of another job whose supervisor took this image under a name that both gave their images; empty:
// it is this one's, somebody has given it this name, or that is not known.
std::string OtherJobOf(const v1::Image& image, const std::string& job) {
  if (!image.labels().contains(v1::kSupervisedLabel) || image.labels().contains(v1::kSupervisedAskedLabel))
    return "";
  const auto label = image.labels().find(v1::kJobNameLabel);
  return label == image.labels().end() || label->second == job ? "" : label->second;
}

struct OthersImage {
  std::string reference, job;
};

// The newest of those of `images` that are other jobs', which are taken out.
std::optional<OthersImage> DropOthersImages(const std::string& job, std::vector<v1::Image>* images) {
  std::optional<OthersImage> others;
  std::erase_if(*images, [&](const v1::Image& image) {
    const std::string other = OtherJobOf(image, job);
    if (!others && !other.empty()) others = OthersImage{image.reference(), other};
    return !other.empty();
  });
  return others;
}

// The job may have had another name.
absl::Status OnlyOthersImages(const std::string& name, const OthersImage& others, const std::string& place) {
  return absl::FailedPreconditionError(
      absl::StrCat("the images of '", name, "'", place.empty() ? "" : absl::StrCat(" in ", place),
                   " are of another job (", others.reference, " is of job '", others.job, "')", kBeginAnew,
                   "; --from ", others.reference, " in its place goes on from that one",
                   place.empty() ? ""
                                 : absl::StrCat(", once 'rekindle copy ", others.reference, " --from ", place,
                                                "' has brought it here")));
}

// There is none: `run` makes it.
bool IsNoStore(const absl::Status& status) {
  const ExitCode code = ExitCodeFor(status);
  return code == kNoStore || code == kNotFound;
}

// `why` there is no store: nothing was copied to it yet. A folder has to be there, since one that is mounted
// later would not.
bool IsNewPlace(const ImagePlace& place, const absl::Status& why) {
  if (!place.bucket.empty()) return false;
  if (absl::StartsWith(place.where, "/")) return CauseOf(why) == kCauseEmptyFolder;
  return CauseOf(why) != kCauseNotMounted;
}

absl::StatusOr<ImagePlace> CopyPlace(const GlobalOptions& globals, const v1::CopyTo& to) {
  const bool tls = !globals.tls_ca.empty() || !globals.tls_certificate.empty() || !globals.tls_key.empty();
  return ParsePlace("--copy-to", to.place(), tls, "/");
}

// It may have run on another node since: what was copied from there must be here, too.
absl::Status CheckIsNewest(const GlobalOptions& globals, const v1::CopyTo& to, const std::string& job,
                           const std::string& name, const std::vector<v1::Image>& here,
                           std::optional<std::vector<v1::Image>>* listed_there) {
  RK_ASSIGN_OR_RETURN(const ImagePlace place, CopyPlace(globals, to));
  absl::StatusOr<std::vector<v1::Image>> listed =
      ImagesElsewhere(globals, place.where, place.bucket, name, here.empty() ? nullptr : &here);
  // What is not there may not be mounted on this node.
  if (IsNoStore(listed.status()) && !IsNewPlace(place, listed.status())) {
    return absl::FailedPreconditionError(
        absl::StrCat(kNotKnown, ": ", to.place(),
                     " is not there. Mount it; where nothing was ever copied to it, make it first (",
                     listed.status().message(), ")"));
  }
  if (IsNoStore(listed.status())) listed = std::vector<v1::Image>();
  RK_RETURN_IF_ERROR(Annotate(listed.status(), kNotKnown));
  *listed_there = *listed;
  std::vector<v1::Image> there = *std::move(listed);
  const std::optional<OthersImage> others = DropOthersImages(job, &there);
  if (here.empty() && there.empty() && others) return OnlyOthersImages(name, *others, to.place());
  // A daemon goes by certificates.
  if (place.bucket.empty() && absl::StartsWith(place.where, "/")) DropOtherUsersImages(here, &there);
  absl::StatusOr<const v1::Image*> newer = NewerElsewhere(here, there, to.place());
  if (absl::IsFailedPrecondition(newer.status()))
    return Annotate(newer.status(), absl::StrCat("comparing with the images in ", to.place()));
  RK_ASSIGN_OR_RETURN(const v1::Image* const newest, std::move(newer));
  if (newest == nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      here.empty() ? "there is no image here, and " : "the images here are older than ", newest->reference(),
      here.empty() ? absl::StrCat(" is in ", to.place()) : absl::StrCat(" in ", to.place()),
      ": 'rekindle copy ", newest->reference(), " --from ", to.place(),
      "' brings it here (administrators, for another user with --owner USER), and --resume goes on from it "
      "then. "
      "Otherwise its work would be done once more; leave --resume out if that is what you want"));
}

}  // namespace

absl::StatusOr<std::vector<int>> ParseStopSignals(absl::string_view text) {
  std::vector<int> signals;
  for (const absl::string_view word : absl::StrSplit(text, ',')) {
    const std::string upper = absl::AsciiStrToUpper(absl::StripAsciiWhitespace(word));
    const absl::string_view name = absl::StripPrefix(upper, "SIG");
    const auto* found = std::find_if(std::begin(kStopSignals), std::end(kStopSignals),
                                     [&](int signal) { return ::sigabbrev_np(signal) == name; });
    if (found == std::end(kStopSignals)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--stop-on: '", word,
                       "' is none of TERM, INT, HUP, USR1, USR2 and XCPU: write several as TERM,USR1"));
    }
    signals.push_back(*found);
  }
  return signals;
}

absl::StatusOr<std::optional<v1::Job>> JobThatRuns(Client& client, absl::string_view host,
                                                   const std::string& name) {
  RK_ASSIGN_OR_RETURN(const v1::ListJobsResponse listed, client.ListJobs(v1::ListJobsRequest()));
  for (const v1::Job& job : listed.jobs()) {
    if (job.name() != name || !job.has_supervised() || !IsOwn(host, job.owner_uid())) continue;
    if (job.supervised().phase() != "done" && job.supervised().phase() != "failed") return job;
  }
  return std::nullopt;
}

absl::StatusOr<std::string> GoOnFromNewest(Client& client, absl::string_view host,
                                           const GlobalOptions& globals, v1::RunRequest* request,
                                           std::optional<std::vector<v1::Image>>* listed_there) {
  const std::string& given = request->supervision().image_name();
  const std::string name = given.empty() ? request->name() : given;
  v1::ListImagesRequest list;
  list.set_name_contains(absl::StrCat(name, ":"));
  absl::StatusOr<v1::ListImagesResponse> listed = client.ListImages(list);
  if (IsNoStore(listed.status())) listed = v1::ListImagesResponse();
  RK_RETURN_IF_ERROR(Annotate(listed.status(), kNotKnown));
  std::vector<v1::Image> own = ImagesCalled(name, *std::move(listed));
  std::erase_if(own, [&](const v1::Image& image) { return !IsOwn(host, image.owner_uid()); });
  const std::optional<OthersImage> others = DropOthersImages(request->name(), &own);
  RK_ASSIGN_OR_RETURN(const std::vector<v1::Image> images, ResumePoints(std::move(own)));
  if (request->supervision().has_copy_to())
    RK_RETURN_IF_ERROR(CheckIsNewest(globals, request->supervision().copy_to(), request->name(), name, images,
                                     listed_there));
  const auto whole =
      std::find_if(images.begin(), images.end(), [](const v1::Image& image) { return !image.damaged(); });
  if (whole != images.end()) {
    request->set_from_image(whole->reference());
    for (auto older = whole + 1; older != images.end() && request->older_images_size() < kMostOlder;
         ++older) {
      if (!older->damaged()) request->add_older_images(older->reference());
    }
    request->clear_argv();
    return absl::StrCat("the job goes on from ", whole->reference(), ", taken ",
                        Age(absl::ToUnixNanos(MomentOf(*whole)), UnixNanos()),
                        whole == images.begin() ? "" : ", since newer ones are damaged");
  }
  if (!images.empty()) {
    return absl::DataLossError(absl::StrCat(
        "all images of '", name, "' are damaged (the newest: ", images.front().reference(), ")", kBeginAnew));
  }
  if (others) return OnlyOthersImages(name, *others, /*place=*/"");
  return absl::StrCat("there is no image of '", name, "' to go on from: the job begins with its command");
}

std::string TellsOfLateImage(Client& client, const GlobalOptions& globals, const v1::RunRequest& request,
                             std::optional<std::vector<v1::Image>> listed_there) {
  if (request.from_image().empty() || !request.supervision().has_copy_to()) return "";
  const std::string& to = request.supervision().copy_to().place();
  const std::string& from = request.from_image();
  const std::string& given = request.supervision().image_name();
  const std::string name = given.empty() ? from.substr(0, from.find_first_of(":@")) : given;
  if (!listed_there) {
    const absl::StatusOr<ImagePlace> place = CopyPlace(globals, request.supervision().copy_to());
    if (!place.ok()) return "";  // which `run` says itself
    absl::StatusOr<std::vector<v1::Image>> listed =
        ImagesElsewhere(globals, place->where, place->bucket, name, /*here=*/nullptr);
    if (!listed.ok()) return "";
    listed_there = *std::move(listed);
  }
  const std::vector<v1::Image>& there = *listed_there;
  if (there.empty()) return "";
  v1::ListImagesRequest list;
  list.set_name_contains(absl::StrCat(name, ":"));
  const absl::StatusOr<v1::ListImagesResponse> here = client.ListImages(list);
  if (!here.ok()) return "";
  const bool is_ours = std::any_of(here->images().begin(), here->images().end(), [&](const v1::Image& image) {
    // An object store's listing has no whole digests.
    return !image.labels().contains(v1::kOriginLabel) &&
           IdOf(image.digest()) == IdOf(OriginOf(there.front()));
  });
  return is_ours ? "" : WarnsOfLateImage(there.front(), to, absl::FromUnixNanos(UnixNanos()));
}

std::string TellsOfOtherCommand(const std::vector<std::string>& given, const v1::Job& job) {
  constexpr size_t kMayBeCut = 4000, kShown = 500;
  const std::string command = absl::StrJoin(given, " ");
  if (std::max(command.size(), job.command().size()) >= kMayBeCut) return "";
  // Scripts are begun by their interpreter, and programs like env put another one in their place.
  if (absl::EndsWith(command, job.command()) || absl::EndsWith(job.command(), command)) return "";
  return absl::StrCat("the job goes on with the command that it has, ", Shown(job.command(), kShown),
                      ": what this line says in its place counts only where a job begins");
}

}  // namespace rekindle::cli
