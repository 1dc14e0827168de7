// The wheel has Gloo's symbols but not its headers. These five files declare the names that c10d's ProcessGroupGloo.hpp mentions.
#pragma once
