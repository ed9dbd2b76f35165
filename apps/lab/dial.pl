#!@PERL@
# Joins standard input and output to a unix socket, as `nc -U` does. On Linux AF_UNIX and SOCK_STREAM are 1.
socket(my $s, 1, 1, 0) or exit 126;
unless (connect($s, pack('Sa108', 1, $ARGV[0]))) { print STDERR "ssh: connect: Connection refused\n"; exit 1; }
sub put { my ($to, $data) = @_; my $o = 0; while ($o < length $data) { my $n = syswrite($to, $data, length($data) - $o, $o); exit 1 unless defined $n; $o += $n; } }
my $open = 1;
while (1) {
  my $r = ''; vec($r, fileno($s), 1) = 1; vec($r, 0, 1) = 1 if $open;
  select($r, undef, undef, undef);
  if ($open && vec($r, 0, 1)) { my $n = sysread(STDIN, my $d, 262144); if ($n) { put($s, $d) } else { $open = 0; shutdown($s, 1) } }
  if (vec($r, fileno($s), 1)) { my $n = sysread($s, my $d, 262144); exit 0 unless $n; put(\*STDOUT, $d) }
}
