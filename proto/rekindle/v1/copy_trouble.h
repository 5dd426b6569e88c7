// Troubles of copies that are told in words of their own.
#pragma once

namespace rekindle::v1 {

// How the error of a copy begins (NoteCopyRequest) that is there, while another start of the job puts its
// images to the same place.
inline constexpr char kGoesOnElsewhere[] = "the job goes on elsewhere, too: ";

}  // namespace rekindle::v1
