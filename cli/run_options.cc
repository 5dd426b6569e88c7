#include "cli/run_options.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/clock.h"
#include "base/status.h"
#include "cli/arguments.h"
#include "cli/exit_code.h"
#include "cli/image_listing.h"
#include "cli/table.h"
#include "cli/transfer_arguments.h"

namespace rekindle::cli {
namespace {

// What schedulers send before they end something.
constexpr int kStopSignals[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGXCPU};

// An administrator is shown those of others, too. Over TCP it is the daemon's business whose a caller's are.
bool IsOwn(absl::string_view host, uint32_t owner) {
  const bool on_this_machine = host.empty() || absl::StartsWith(host, "unix:");
  return !on_this_machine || owner == ::geteuid();
}

constexpr absl::string_view kNotKnown =
    "it is not known whether there is an image to go on from, so nothing was started";
constexpr absl::string_view kBeginAnew =
    ": the job is not begun anew over what it has written. Leave --resume out if that is what you want";

absl::string_view TagOf(const v1::Image& image) {
  return absl::string_view(image.reference()).substr(image.reference().find(':') + 1);
}

// None where there is no store: `run` makes it.
absl::StatusOr<v1::ListImagesResponse> ImagesCalled(const std::string& name,
                                                    absl::StatusOr<v1::ListImagesResponse> all) {
  const ExitCode code = ExitCodeFor(all.status());
  if (code == kNoStore || code == kNotFound) return v1::ListImagesResponse();
  RK_RETURN_IF_ERROR(all.status());
  v1::ListImagesResponse called;
  for (v1::Image& image : *all->mutable_images()) {
    if (absl::StartsWith(image.reference(), absl::StrCat(name, ":"))) *called.add_images() = std::move(image);
  }
  return called;
}

// It may have run on another node since: what was copied from there must be here, too.
absl::Status CheckIsNewest(const GlobalOptions& globals, const v1::CopyTo& to, const std::string& name,
                           const std::vector<v1::Image>& here) {
  const bool tls = !globals.tls_ca.empty() || !globals.tls_certificate.empty() || !globals.tls_key.empty();
  RK_ASSIGN_OR_RETURN(const ImagePlace place, ParsePlace("--copy-to", to.place(), tls, "/"));
  const absl::StatusOr<v1::ListImagesResponse> there =
      ImagesCalled(name, ImagesElsewhere(globals, place.where, place.bucket));
  RK_RETURN_IF_ERROR(Annotate(there.status(), kNotKnown));
  // Their tags are times, which are those of the images wherever these have come to.
  const auto older = [](const v1::Image& a, const v1::Image& b) { return TagOf(a) < TagOf(b); };
  const auto newest = std::max_element(there->images().begin(), there->images().end(), older);
  if (newest == there->images().end()) return absl::OkStatus();
  if (std::any_of(here.begin(), here.end(), [&](const v1::Image& image) { return !older(image, *newest); }))
    return absl::OkStatus();
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
                                           const GlobalOptions& globals, v1::RunRequest* request) {
  const std::string& given = request->supervision().image_name();
  const std::string name = given.empty() ? request->name() : given;
  v1::ListImagesRequest list;
  list.set_name_contains(absl::StrCat(name, ":"));
  absl::StatusOr<v1::ListImagesResponse> listed = ImagesCalled(name, client.ListImages(list));
  RK_RETURN_IF_ERROR(Annotate(listed.status(), kNotKnown));
  std::vector<v1::Image> images;
  for (v1::Image& image : *listed->mutable_images()) {
    if (IsOwn(host, image.owner_uid())) images.push_back(std::move(image));
  }
  if (request->supervision().has_copy_to())
    RK_RETURN_IF_ERROR(CheckIsNewest(globals, request->supervision().copy_to(), name, images));
  const auto whole =
      std::find_if(images.begin(), images.end(), [](const v1::Image& image) { return !image.damaged(); });
  if (whole != images.end()) {
    request->set_from_image(whole->reference());
    for (auto older = whole + 1; older != images.end(); ++older) {
      if (!older->damaged()) request->add_older_images(older->reference());
    }
    request->clear_argv();
    return absl::StrCat("the job goes on from ", whole->reference(), ", taken ",
                        Age(whole->created_unix_ns(), UnixNanos()),
                        whole == images.begin() ? "" : ", since newer ones are damaged");
  }
  if (!images.empty()) {
    return absl::DataLossError(absl::StrCat(
        "all images of '", name, "' are damaged (the newest: ", images.front().reference(), ")", kBeginAnew));
  }
  return absl::StrCat("there is no image of '", name, "' to go on from: the job begins with its command");
}

}  // namespace rekindle::cli
