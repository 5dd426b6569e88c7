#include "cli/transfer_arguments.h"

#include <sys/stat.h>

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "cli/copy_command.h"
#include "cli/endpoint.h"
#include "cli/image_listing.h"
#include "cli/number_checks.h"
#include "cli/paths.h"
#include "cli/transfer_commands.h"

namespace rekindle::cli {
namespace {

// What follows "rclone:"; empty: `place` is no object store. "rclone:7443" is a machine of that name.
std::string BucketIn(absl::string_view place) {
  if (!absl::ConsumePrefix(&place, "rclone:")) return "";
  return absl::StrContains(place, ":") || absl::StartsWith(place, "/") ? std::string(place) : "";
}

// `place` as other programs write an object store, a folder or another machine: how it is written here. OK:
// it is none of these.
absl::Status CheckForOtherForms(absl::string_view option, absl::string_view place) {
  static constexpr absl::string_view kObjectStores[] = {
      "s3",    "s3a", "s3n", "gs",  "gcs", "az",  "azure", "abfs",  "abfss", "wasb",
      "wasbs", "r2",  "b2",  "oss", "cos", "obs", "swift", "minio", "hdfs"};
  auto refused = [&](const std::string& form) {
    return absl::InvalidArgumentError(absl::StrCat(option, ": '", place, "' is no place: ", form));
  };
  if (absl::StartsWith(place, "rclone:")) {
    absl::string_view rest = place.substr(place.find(':') + 1);
    // "rclone:7443" is a machine of that name.
    if (rest.empty() || rest.find_first_not_of("0123456789") == std::string::npos) return absl::OkStatus();
    return refused(
        absl::StrCat("write rclone:", rest, ":PATH, with a remote that 'rclone listremotes' shows"));
  }
  const size_t scheme_end = place.find("://");
  if (scheme_end == std::string::npos) {
    // As rclone and scp have it. A port is a number.
    const size_t colon = place.find(':');
    absl::string_view rest = place.substr(colon + 1);
    if (absl::StrContains(rest, "/") && !absl::StartsWith(place, "unix:") && !absl::StartsWith(place, "[")) {
      return refused(
          absl::StrCat("an object store is rclone:", place,
                       ", with a remote that 'rclone listremotes' shows; another machine is HOST:PORT, "
                       "where its daemon listens"));
    }
    return absl::OkStatus();
  }
  absl::string_view scheme = place.substr(0, scheme_end), rest = place.substr(scheme_end + 3);
  if (scheme == "unix") return absl::OkStatus();
  if (scheme == "file") return refused(absl::StrCat("write the folder of a store as it is, ", rest));
  if (scheme == "ssh" || scheme == "sftp" || scheme == "scp") {
    return refused(
        "write HOST:PORT, where a daemon listens, or send it as 'rekindle export IMAGE --file - | ssh HOST "
        "rekindle "
        "import --file -'");
  }
  for (absl::string_view store : kObjectStores) {
    if (scheme == store) {
      return refused(absl::StrCat("write rclone:REMOTE:", rest, ", with a remote for ", scheme,
                                  " that 'rclone config' has set up and 'rclone listremotes' shows"));
    }
  }
  return refused(
      "write a daemon as HOST:PORT or unix:///PATH, the folder of a store as /DIR or ./DIR, an object store "
      "as "
      "rclone:REMOTE:PATH");
}

// A daemon, as --host names it, or the folder of a store.
absl::StatusOr<std::string> Place(absl::string_view option, const std::string& place, bool tls,
                                  const std::string& working_directory) {
  // A folder with a colon begins with '/' or '.'.
  const bool is_path = absl::StartsWith(place, "/") || absl::StartsWith(place, ".");
  if (!is_path && absl::StrContains(place, ":")) {
    RK_RETURN_IF_ERROR(CheckForOtherForms(option, place));
    RK_RETURN_IF_ERROR(Annotate(CheckHost(place), option));
    return place;
  }
  std::string folder = Absolute(place, working_directory);
  if (is_path || absl::StrContains(place, "/")) return folder;
  // It may as well be a machine's name.
  struct stat info;
  if (tls || ::stat(folder.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(option, ": '", place,
                                                   "' can be a machine and a folder: name a daemon as ",
                                                   place, ":PORT, the folder of a store as ./", place));
  }
  return folder;
}

// A word for `ls` to look for, which is none.
absl::Status CheckIsNoPlace(const std::string& text, const std::string& working_directory) {
  struct stat info;
  const bool is_folder = (absl::StartsWith(text, "/") || absl::StartsWith(text, ".")) &&
                         ::stat(Absolute(text, working_directory).c_str(), &info) == 0 &&
                         S_ISDIR(info.st_mode);
  if (!is_folder && BucketIn(text).empty() && !absl::StrContains(text, "://")) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("'", text, "' is a place and no part of an image's name: 'rekindle ls --from ", text,
                   "' lists what is there"));
}

}  // namespace

absl::StatusOr<ImagePlace> ParsePlace(absl::string_view option, const std::string& place, bool tls,
                                      const std::string& working_directory) {
  ImagePlace parsed;
  parsed.bucket = BucketIn(place);
  parsed.where = place;
  if (parsed.bucket.empty()) {
    RK_ASSIGN_OR_RETURN(parsed.where, Place(option, place, tls, working_directory));
  }
  return parsed;
}

void TransferArguments::AddToExport(CLI::App* command) {
  command->add_option("image", image_, "The image")->type_name("IMAGE")->required();
  CLI::Option* file =
      command->add_option("--file", file_, "The file to write, or - for standard output")->type_name("FILE");
  command
      ->add_option("--since", since_,
                   "Leave out what is as in this image, which whoever takes this one in has already")
      ->type_name("IMAGE")
      ->needs(file);
  command->add_option("--criu", criu_, "The folder to write for CRIU: absent or empty")
      ->type_name("DIR")
      ->excludes(file);
}

void TransferArguments::AddToImport(CLI::App* command) {
  CLI::Option* file =
      command->add_option("--file", file_, "What 'rekindle export --file' wrote, or - for standard input")
          ->type_name("FILE");
  CLI::Option* criu = command->add_option("--criu", criu_, "The folder that 'criu dump' made")
                          ->type_name("DIR")
                          ->excludes(file);
  command->add_option("-t,--tag", reference_, "The image's name [the one that it had]")
      ->type_name("NAME:TAG");
  command->add_flag("--replace", replace_, "Take over a name that exists")->needs(file);
  command->add_option("--owner", owner_, "The user whose image it becomes [your own]")
      ->type_name("USER")
      ->needs(file);
  command->add_option("--parent", parent_, "Deduplicate against this image")->type_name("IMAGE")->needs(criu);
}

void TransferArguments::AddToCopy(CLI::App* command) {
  command->add_option("image", image_, "The image; with --follow, and from an object store, a name does")
      ->type_name("IMAGE")
      ->required();
  CLI::Option* to = command->add_option("--to", to_,
                                        "Another daemon, as --host names it, the folder of a store, or of an "
                                        "object store that rclone knows");
  to->type_name(kPlaces);
  CLI::Option* from = command->add_option("--from", from_, "The same, to copy from there to here");
  from->type_name(kPlaces)->excludes(to);
  CLI::Option* tag =
      command->add_option("-t,--tag", reference_, "The copy's name [the one that the image has]")
          ->type_name("NAME:TAG");
  command->add_flag("--replace", replace_, "Take over a name that exists there");
  command->add_option("--owner", owner_, "The user there whose image the copy becomes [your own]")
      ->type_name("USER");
  command->add_flag("--whole", whole_, "Send all of it, also what an image there has of it");
  CLI::Option* follow =
      command->add_flag("--follow", follow_, "Go on with each newer image of that name, until interrupted")
          ->excludes(tag);
  command
      ->add_flag("--check", check_,
                 "Copy nothing, only say whether images of that name could be written there")
      ->excludes(follow)
      ->excludes(from);
  command->add_option("--keep", keep_, "How many of these copies stay there [all]")
      ->type_name("N")
      ->check(AboveZero())
      ->needs(follow);
}

void TransferArguments::AddToLs(CLI::App* command) {
  command->add_option("text", texts_, "Only images whose name contains one of these")->type_name("TEXT");
  command
      ->add_option("--from", from_,
                   "Images elsewhere: at another daemon, in the folder of a store, or in an object store")
      ->type_name(kPlaces);
}

absl::StatusOr<Command> TransferArguments::Finish(const std::string& name, bool tls,
                                                  const std::string& working_directory) const {
  if (name == "ls") return Ls(tls, working_directory);
  if (name == "copy") return Copy(tls, working_directory);
  if (file_.empty() && criu_.empty()) {
    return absl::InvalidArgumentError(
        "give --file FILE (an image of Rekindle's own) or --criu DIR (what criu reads and writes)");
  }
  return name == "export" ? Export(working_directory) : Import(working_directory);
}

absl::StatusOr<Command> TransferArguments::Export(const std::string& working_directory) const {
  if (!criu_.empty()) {
    v1::ExportImageRequest request;
    request.set_image(image_);
    request.set_criu_directory(Absolute(criu_, working_directory));
    return request;
  }
  ExportToFile what;
  what.request.set_image(image_);
  what.request.set_since(since_);
  what.file = file_;
  return what;
}

absl::StatusOr<Command> TransferArguments::Import(const std::string& working_directory) const {
  if (!criu_.empty()) {
    if (reference_.empty()) {
      return absl::InvalidArgumentError("what CRIU wrote has no name: give it one with -t NAME:TAG");
    }
    v1::ImportImageRequest request;
    request.set_criu_directory(Absolute(criu_, working_directory));
    request.set_reference(reference_);
    request.set_parent(parent_);
    return request;
  }
  ImportFromFile what;
  what.begin.set_reference(reference_);
  what.begin.set_replace(replace_);
  what.begin.set_owner(owner_);
  what.file = file_;
  return what;
}

absl::Status TransferArguments::CheckForBucket() const {
  if (!reference_.empty() && from_.empty()) {
    return absl::InvalidArgumentError("-t: in an object store an image has the name that it has here");
  }
  if (replace_ && from_.empty()) {
    return absl::InvalidArgumentError(
        "--replace: nothing need be replaced in an object store, where of several images of one name the "
        "newest counts");
  }
  if (!owner_.empty() && from_.empty()) {
    return absl::InvalidArgumentError(
        "--owner: an object store has no owners; whoever takes the image in from there says whose it "
        "becomes");
  }
  if (from_.empty()) return absl::OkStatus();
  if (follow_) return absl::InvalidArgumentError("--follow goes --to an object store, not --from one");
  if (absl::StrContains(image_, "@") || absl::StartsWith(image_, "sha256:")) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", image_, "': an object store has images by their names: NAME:TAG, or NAME for the newest one"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Command> TransferArguments::Copy(bool tls, const std::string& working_directory) const {
  if (to_.empty() && from_.empty()) {
    return absl::InvalidArgumentError(
        "say where the copy is to be (--to), or where it is to come from (--from)");
  }
  if (follow_ && absl::StrContains(image_, ":")) {
    return absl::InvalidArgumentError(
        "--follow goes from one image of a name to the next: leave the tag out");
  }
  CopyImage what;
  what.image = image_;
  RK_ASSIGN_OR_RETURN(ImagePlace place, ParsePlace(from_.empty() ? "--to" : "--from",
                                                   from_.empty() ? to_ : from_, tls, working_directory));
  if (!place.bucket.empty()) RK_RETURN_IF_ERROR(CheckForBucket());
  (from_.empty() ? what.to : what.from) = std::move(place.where);
  what.bucket = std::move(place.bucket);
  what.begin.set_reference(reference_);
  what.begin.set_replace(replace_);
  what.begin.set_owner(owner_);
  what.whole = whole_;
  what.check = check_;
  what.follow = follow_;
  what.keep = keep_;
  return what;
}

absl::StatusOr<Command> TransferArguments::Ls(bool tls, const std::string& working_directory) const {
  ImageListing what;
  what.texts = texts_;
  for (const std::string& text : texts_) RK_RETURN_IF_ERROR(CheckIsNoPlace(text, working_directory));
  if (from_.empty()) return what;
  RK_ASSIGN_OR_RETURN(ImagePlace place, ParsePlace("--from", from_, tls, working_directory));
  what.from = std::move(place.where);
  what.bucket = std::move(place.bucket);
  return what;
}

}  // namespace rekindle::cli
